"""Approval of single calls by a person: the gate of the hub, the questions, and their storage."""
