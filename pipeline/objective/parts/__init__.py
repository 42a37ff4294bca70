"""The parts that methods are made of, one a module: settings, formula, source and columns in one place (see ../part.py)."""
