"""Training in the lab: finite networks by the batch, and their exact limit."""
