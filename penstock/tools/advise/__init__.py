"""What to do, as data: decision trees, checklists, a cheat sheet, a linter's rules, quizzes.

Commands print them and pages draw them; nothing here prints, asks or measures. Where a number decides, `calculate` has it.
"""
