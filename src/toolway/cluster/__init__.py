"""Cluster mode: several gateway nodes that share one configuration.

Loaded only by `toolway serve --cluster`.
"""
