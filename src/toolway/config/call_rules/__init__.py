"""Rules of the operator about calls: budgets, redaction of results, flows of data."""
