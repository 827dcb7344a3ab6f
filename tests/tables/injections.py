"""Names and queries for SQL injection."""

from __future__ import annotations

NAMES = (
    "x'; DROP TABLE victim; --", 'x"; DROP TABLE victim; --', "x`; DROP TABLE victim; --", "x]; DROP TABLE victim; --",
    "victim; DELETE FROM victim", "victim WHERE 1=0 UNION SELECT secret FROM victim", "(SELECT 1)", "victim--",
    "victim/**/", "victim\\", '"victim"; DROP TABLE victim', "''", '""', "``", "victim\\'; DROP TABLE victim; --",
    "public.victim; DROP TABLE victim", "%s", ":x", "{0}", "$$; DROP TABLE victim; $$",
)
QUERIES = (
    "DROP TABLE victim", "DELETE FROM victim", "UPDATE victim SET secret = 0", "INSERT INTO victim VALUES (2)",
    "SELECT 1; DROP TABLE victim", "SELECT 1; DELETE FROM victim; --", "SELECT * FROM victim; SELECT 1",
    "SELECT 1) AS wanted; DROP TABLE victim; --", "SELECT 1 -- \n; DROP TABLE victim",
    "SELECT 1 /* */; DROP TABLE victim", "SELECT /*!50000 1 INTO OUTFILE '/tmp/x' */ 1",
    "SELECT * INTO other FROM victim", "WITH gone AS (DELETE FROM victim RETURNING *) SELECT * FROM gone",
    "SELECT 'a\\'; DROP TABLE victim; SELECT 'b'", "SELECT '\\'' ; DROP TABLE victim --'",
    "SELECT $$'$$; DROP TABLE victim; SELECT $$'$$", "SELECT $a$'$a$; DROP TABLE victim; SELECT $a$'$a$",
    "SELECT [a'b]; DROP TABLE victim; SELECT [c'd]", "SELECT 1 FROM victim FOR UPDATE", "CALL harm()",
    "EXPLAIN ANALYZE DELETE FROM victim", "COPY victim TO PROGRAM 'touch /tmp/x'", "TRUNCATE victim",
    "SELECT \"a\\\"; DROP TABLE victim; SELECT \"b\"",
)
