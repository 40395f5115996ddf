"""Networks and the methods on them. A method is one file; `backend.py` lists them."""
