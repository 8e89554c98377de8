"""The web app at `/` and the JSON behind it under `/app/v1/`.

Serves built files, shows what the engine is doing to open pages, and runs the tools in processes of their own. Computes
nothing itself: pages draw what the engine, the simulator and the calculators say.
"""
