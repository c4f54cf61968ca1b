"""Budgets of callers: how many calls or bytes a key or group may use per period.

Each process leases units from a ledger in advance, so that a usual call does not wait for the ledger.
"""
