"""A whole script with `fit`, and what it becomes: TFRecords, batch normalization, a schedule, half precision."""
