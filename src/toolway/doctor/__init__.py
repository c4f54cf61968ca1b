"""Diagnosis of an MCP setup: config files, entries, servers, leftover processes.

Every problem is reported with its cause, detail and a hint that works.

`report.py` holds the result, `run.py` produces it. Files and entries are checked first. Then every server is started
once, all of them in parallel, and observed. Every check is a pure function of the observations.
"""
