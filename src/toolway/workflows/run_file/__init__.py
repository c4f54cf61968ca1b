"""File of workflow runs: its rows (`run_rows.py`), and the second record of intents beside it (`intent_record.py`)."""
