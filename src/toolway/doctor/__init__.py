"""What is wrong with a setup, in the words of the person who has it: cause, evidence, and a fix that works.

`report.py` is the answer, `examine.py` the way to it: files and entries are looked at first, then every server is
started once, all at the same time, and watched. Whatever judges is a plain function of what was seen.
"""
