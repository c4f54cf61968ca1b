"""`toolway audit`: verify, list, export and sign the audit log."""
