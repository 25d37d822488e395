"""What the processes of a bench run: one program each, which does a round when it is told to."""
