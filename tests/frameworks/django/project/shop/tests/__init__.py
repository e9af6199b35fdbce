"""Run by `manage.py test`; pytest runs that (see the folder above). The files' names are not what pytest looks for."""
