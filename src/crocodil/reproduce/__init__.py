"""The paper's tables and figures, anew: rows first, ink second."""
