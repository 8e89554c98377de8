"""`penstock conform`: does a server do what real clients expect?"""
