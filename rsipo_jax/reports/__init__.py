"""What a run leaves behind and shows: records, console output, tables and curves."""
