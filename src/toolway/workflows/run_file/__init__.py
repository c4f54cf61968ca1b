"""File of workflow runs: its rows (`run_rows.py`), and the second record of intents next to it (`intent_record.py`)."""
