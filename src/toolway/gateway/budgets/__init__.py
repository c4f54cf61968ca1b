"""Budgets of callers: units are leased from a ledger, so that no usual call waits for it."""
