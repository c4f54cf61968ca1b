"""Detection of risky data flows: a caller that reads private data and untrusted texts, and can send data out."""
