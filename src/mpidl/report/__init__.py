"""A run's reports: its files, the progress bar and the summary."""
