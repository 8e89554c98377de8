"""Times of requests and the numbers made of them: timelines, histograms, percentiles, exposition.

The same code in server and simulator. No clock: times are given.
"""
