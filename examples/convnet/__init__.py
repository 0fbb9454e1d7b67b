"""A complete script with `fit`, and its conversion to a job: TFRecords, batch normalization, a schedule, half
precision.
"""
