"""The command line and what authors use.

Doctor, benchmark, training, storing and checking notebooks.
"""
