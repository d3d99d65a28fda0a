"""The programs that the soak runs."""

from churn import Churn
from git import Git
from postgres import Postgres
from sqlite import Sqlite
from trees import Trees
from writers import MappedFiles, SyncedFiles

PROGRAMS = {p.name: p for p in [Churn, SyncedFiles, MappedFiles, Sqlite, Git, Trees, Postgres]}
