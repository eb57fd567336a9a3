"""What every lab needs, whatever it builds: errors, waiting, packages, rows and a program."""
