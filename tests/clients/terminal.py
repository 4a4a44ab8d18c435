"""Runs a command on a terminal of its own and answers its question.

usage: terminal.py ANSWER QUESTION PROGRAM ARGUMENTS…

Types ANSWER once the text QUESTION has appeared. Prints what the terminal showed; exits as the
command did.
"""

import os
import pty
import sys

answer, question, command = sys.argv[1], sys.argv[2].encode(), sys.argv[3:]
child, terminal = pty.fork()
if child == 0:
    os.execvp(command[0], command)
shown, answered = b"", False
while True:
    try:
        read = os.read(terminal, 4096)
    except OSError:
        break
    if not read:
        break
    shown += read
    if not answered and question in shown:
        answered = True
        os.write(terminal, answer.encode() + b"\n")
sys.stdout.buffer.write(shown)
sys.stdout.flush()
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
