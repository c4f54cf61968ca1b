"""Benchmarks of the workflow engine."""
