"""Runs a command on a terminal of its own and answers its questions.

usage: terminal.py ANSWERS QUESTION PROGRAM ARGUMENTS…

Types the next of ANSWERS, which commas separate, each time the text QUESTION has appeared. Prints what the terminal showed; exits as the
command did.
"""

import os
import pty
import sys

answers, question, command = sys.argv[1].split(","), sys.argv[2].encode(), sys.argv[3:]
child, terminal = pty.fork()
if child == 0:
    os.execvp(command[0], command)
shown, total = b"", len(answers)
while True:
    try:
        read = os.read(terminal, 4096)
    except OSError:
        break
    if not read:
        break
    shown += read
    asked = shown.count(question)
    given = total - len(answers)
    for _ in range(given, min(asked, total)):
        os.write(terminal, answers.pop(0).encode() + b"\n")
sys.stdout.buffer.write(shown)
sys.stdout.flush()
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
