"""What people see of a run: its files, the progress bar, the summary."""
