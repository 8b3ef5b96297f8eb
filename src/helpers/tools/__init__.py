"""The command line and what authors use: doctor, benchmark, training, storing and checking notebooks."""
