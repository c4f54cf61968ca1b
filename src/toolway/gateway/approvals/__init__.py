"""Approval of single calls by a person: the decision if a call needs one, the question, and the stored answers."""
