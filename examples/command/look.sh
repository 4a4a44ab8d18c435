# What does a contained program see? Each line says what was tried, and what came of it.
tried() { printf '%s: ' "$1"; shift; "$@" 2>&1 | tail -n 1; }
tried 'who am I' id -u
tried 'what is in /' sh -c 'echo $(ls /)'
tried 'whose home folders are there' ls /home /root
tried 'may I write here' touch here
tried 'may I write to my own /tmp' sh -c 'touch /tmp/x && echo yes'
tried 'which processes are there' sh -c 'ls /proc | grep -c "^[0-9]"'
tried 'which variables do I have' sh -c 'echo $(env | cut -d= -f1 | sort)'
