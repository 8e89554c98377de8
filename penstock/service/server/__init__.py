"""HTTP and JSON begin and end here.

`http/` is the machinery, a dialect folder is one API's wire format. Talks to engines through their client alone.
"""
