import json, sys
if sys.argv[1] == "list":
    print(json.dumps([{"name": n, "description": "d"} for n in ["echo", "write", "boom"]]))
elif sys.argv[2] == "echo":
    sys.stdout.write(sys.stdin.read())
elif sys.argv[2] == "write":
    open("effects.txt", "a").write(json.load(sys.stdin)["n"] + "\n")
    print("{}")
else:
    sys.exit(5)
