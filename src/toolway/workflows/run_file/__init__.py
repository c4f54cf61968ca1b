"""Files of workflow runs: their rows (`run_rows.py`), and a second record of intents."""
