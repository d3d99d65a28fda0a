/* Transactions of SQLite that change 40 rows on 40 pages to one number: txn DB setup | run N | check */
#include "sqlite3.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static sqlite3 *db;
static void sql(const char *s) {
  char *e = 0;
  if (sqlite3_exec(db, s, 0, 0, &e) != SQLITE_OK) { fprintf(stderr, "%s: %s\n", s, e ? e : "?"); exit(1); }
}
static int number(void *p, int n, char **v, char **c) { (void)n; (void)c; if (v[0]) *(char **)p = strdup(v[0]); return 0; }
static char *one(const char *s) {
  char *r = 0, *e = 0;
  if (sqlite3_exec(db, s, number, &r, &e) != SQLITE_OK) { fprintf(stderr, "%s: %s\n", s, e ? e : "?"); exit(1); }
  return r ? r : "";
}
int main(int argc, char **argv) {
  if (argc < 3 || sqlite3_open(argv[1], &db) != SQLITE_OK) return 2;
  sql("PRAGMA synchronous=FULL");
  one("PRAGMA journal_mode=DELETE");
  if (!strcmp(argv[2], "setup")) {
    sql("CREATE TABLE a(id INTEGER PRIMARY KEY, n INT, pad BLOB)");
    sql("WITH RECURSIVE c(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM c WHERE i<40) INSERT INTO a SELECT i, 0, zeroblob(3000) FROM c");
  } else if (!strcmp(argv[2], "run")) {
    for (int i = 1; i <= atoi(argv[3]); i++) {
      char s[200];
      snprintf(s, sizeof s, "BEGIN; UPDATE a SET n = %d WHERE id %% 5 = %d %% 5 OR id = 1; UPDATE a SET n = %d; COMMIT", i, i, i);
      sql(s);
      printf("committed %d\n", i);
      fflush(stdout);
    }
  } else {
    if (strcmp(one("PRAGMA integrity_check"), "ok")) { fprintf(stderr, "damaged\n"); return 1; }
    if (strcmp(one("SELECT count(DISTINCT n) FROM a"), "1") || strcmp(one("SELECT count(*) FROM a"), "40")) { fprintf(stderr, "half a transaction\n"); return 1; }
    printf("%s\n", one("SELECT max(n) FROM a"));
  }
  sqlite3_close(db);
  return 0;
}
