/* The measurements of weft-bench hfs, through libhfs: PEER IMAGE OPERATION N [REQUEST].
 * Prints two times in seconds: the calls, and up to the volume unmounted and the image synced. */

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "hfs.h"

static double now(void)
{
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + t.tv_nsec / 1e9;
}

static void fail(const char *what)
{
  fprintf(stderr, "%s: %s\n", what, hfs_error ? hfs_error : "?");
  exit(1);
}

int main(int argc, char **argv)
{
  if (argc < 4)
    return 2;
  const char *image = argv[1], *op = argv[2];
  unsigned long n = strtoul(argv[3], 0, 10);
  unsigned long request = argc > 4 ? strtoul(argv[4], 0, 10) : 0;

  if (strcmp(op, "format") == 0)
    return hfs_format(image, 0, 0, "Bench", 0, 0) == 0 ? 0 : (fail(op), 1);

  hfsvol *vol = hfs_mount(image, 0, HFS_MODE_RDWR);
  if (vol == 0)
    fail("mount");
  char *buffer = malloc(n > request ? n : request + 1);
  if (buffer == 0)
    fail("memory");
  memset(buffer, 7, n);

  double start = now();
  if (strcmp(op, "create") == 0) {
    for (unsigned long i = 0; i < n; ++i) {
      char name[32];
      sprintf(name, "file%06lu", i);
      hfsfile *file = hfs_create(vol, name, "TEXT", "ttxt");
      if (file == 0 || hfs_close(file) != 0)
        fail("create");
    }
  } else if (strcmp(op, "delete") == 0) {
    for (unsigned long i = 0; i < n; ++i) {
      char name[32];
      sprintf(name, "file%06lu", i);
      if (hfs_delete(vol, name) != 0)
        fail("delete");
    }
  } else {
    int reads = strcmp(op, "read") == 0;
    hfsfile *file = strcmp(op, "write") == 0 ? hfs_create(vol, "data", "TEXT", "ttxt")
                                             : hfs_open(vol, "data");
    if (file == 0)
      fail("open");
    for (unsigned long at = 0; at < n; at += request) {
      unsigned long len = n - at < request ? n - at : request;
      unsigned long got = reads ? hfs_read(file, buffer + at, len)
                                : hfs_write(file, buffer + at, len);
      if (got != len)
        fail(op);
    }
    if (hfs_close(file) != 0)
      fail("close");
  }
  double called = now() - start;
  if (hfs_umount(vol) != 0)
    fail("umount");
  int fd = open(image, O_RDWR);
  if (fd < 0 || fdatasync(fd) != 0)
    fail("sync");
  double durable = now() - start;
  close(fd);
  printf("%.9f %.9f\n", called, durable);
  return 0;
}
