"""`qcompile quantize`: Q/DQ placed for one target, half precision, weights alone, training."""
