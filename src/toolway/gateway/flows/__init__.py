"""Flows of data through one caller: private data, texts of strangers, and a way out."""
