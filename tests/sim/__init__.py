"""The core in virtual time: a real `Hub`, simulated servers, transports and faults. One seed is one exact run.

loop.py       the event loop: time jumps to the next timer when nothing can run
scenario.py   what a seed stands for: servers, calls, what happens to them
faults.py     what goes wrong with a request, drawn from the seed
servers.py    the far side: a server that keeps a log of what it did
transports.py the near side: a pipe and an HTTP endpoint, behind the seam of `upstream/transport.py`
history.py    what was called, answered and done, in order
checks.py     whether the three agree
resources.py  what a hub still holds when nothing is running
idempotency.py a store of idempotency keys that is slow and fails
run.py        one run
"""
