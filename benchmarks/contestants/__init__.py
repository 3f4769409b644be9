"""How one tool is called through one library: a module for each.

A module has `calls(url, era)`, an asynchronous context manager. It yields a function without
parameters that makes one call of the tool `echo` and returns whatever the library returns. What is
opened once by a program that means to call often is opened once.
"""
