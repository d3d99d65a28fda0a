/* A group on a mount takes the changes of a thread, of a process, or of one open file. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <weft.h>

static int failed;

#define EXPECT(call, expected) expect(__LINE__, #call, (call), (expected))

static void expect(int line, const char *call, long long got, long long expected) {
    if (got == expected) return;
    printf("line %d: %s = %lld, not %lld (%s)\n", line, call, got, expected, weft_error_message());
    failed = 1;
}

/* Returns 1 if the group has changes that are not durable, and makes them so. */
static int took(weft_group *group) {
    int took = weft_group_is_durable(group) == 0;
    EXPECT(weft_group_sync(group), 0);
    return took;
}

static void child_writes(int fd) {
    pid_t child = fork();
    if (child == 0) _exit(pwrite(fd, "child", 5, 0) == 5 ? 0 : 1);
    int status = -1;
    waitpid(child, &status, 0);
    EXPECT(status, 0);
}

int main(int argc, char **argv) {
    char path[4096], image[4096];
    weft_group *group;
    weft_volume *volume;
    if (argc != 2) return 2;
    snprintf(path, sizeof path, "%s/m/f", argv[1]);
    snprintf(image, sizeof image, "%s/other.img", argv[1]);
    int fd = open(path, O_RDWR | O_CREAT, 0644), other = open(path, O_RDWR);
    int elsewhere = open("/", O_RDONLY | O_DIRECTORY);
    EXPECT(fd >= 0 && other >= 0 && elsewhere >= 0, 1);
    EXPECT(weft_group_on_mount(path, &group), 0);

    EXPECT(weft_group_set_label(group, "of C"), 0);
    EXPECT(weft_group_set_label(group, NULL), -EINVAL);
    EXPECT(weft_group_set_label(group, "two\nlines"), -EINVAL);
    EXPECT(weft_group_set_label(group, "\xff"), -EILSEQ);
    EXPECT(weft_group_engage_file(group, fd, WEFT_FSYNC_BARRIER), 0);
    child_writes(fd);
    EXPECT(took(group), 1);
    child_writes(other);
    EXPECT(took(group), 0);
    EXPECT(pwrite(fd, "mine", 4, 0), 4);
    EXPECT(fsync(fd), 0);
    EXPECT(took(group), 1); /* fsync has not waited */
    EXPECT(weft_group_disengage_file(group, fd), 0);

    EXPECT(weft_group_engage_scope(group, WEFT_SCOPE_PROCESS, 60000), 0);
    child_writes(other);
    EXPECT(fsync(other), 0); /* of this process: a barrier, durable in a minute */
    EXPECT(took(group), 1);
    EXPECT(weft_group_disengage_scope(group, WEFT_SCOPE_PROCESS), 0);
    EXPECT(weft_group_engage_scope(group, WEFT_SCOPE_THREAD, WEFT_FSYNC_WAIT), 0);
    child_writes(other);
    EXPECT(took(group), 0);
    EXPECT(pwrite(other, "mine", 4, 0), 4);
    EXPECT(fsync(other), 0);
    EXPECT(took(group), 0); /* fsync has waited */
    EXPECT(weft_group_disengage_scope(group, WEFT_SCOPE_THREAD), 0);

    EXPECT(weft_group_engage_file(NULL, fd, WEFT_FSYNC_WAIT), -EINVAL);
    EXPECT(weft_group_engage_file(group, -1, WEFT_FSYNC_WAIT), -EBADF);
    EXPECT(weft_group_engage_file(group, 1000, WEFT_FSYNC_WAIT), -EBADF);
    EXPECT(weft_group_engage_file(group, elsewhere, WEFT_FSYNC_WAIT), -EXDEV);
    EXPECT(weft_group_engage_file(group, fd, 65536), -EINVAL);
    EXPECT(weft_group_engage_scope(group, 2, WEFT_FSYNC_WAIT), -EINVAL);
    EXPECT(weft_group_disengage_scope(group, 2), -EINVAL);
    EXPECT(weft_group_disengage_file(group, -1), -EBADF);
    weft_group_close(group);

    EXPECT(weft_mkfs(image, "ext2", 16 << 20, NULL, 0), 0);
    EXPECT(weft_volume_open(image, 0, NULL, &volume), 0);
    EXPECT(weft_group_on_volume(volume, &group), 0);
    EXPECT(weft_group_engage_scope(group, WEFT_SCOPE_THREAD, WEFT_FSYNC_WAIT), 0);
    EXPECT(weft_group_disengage_scope(group, WEFT_SCOPE_THREAD), 0);
    EXPECT(weft_group_engage_scope(group, WEFT_SCOPE_THREAD, WEFT_FSYNC_BARRIER), -EOPNOTSUPP);
    EXPECT(weft_group_engage_scope(group, WEFT_SCOPE_PROCESS, WEFT_FSYNC_WAIT), -EOPNOTSUPP);
    EXPECT(weft_group_engage_file(group, fd, WEFT_FSYNC_WAIT), -EOPNOTSUPP);
    EXPECT(weft_group_set_label(group, "label"), -EOPNOTSUPP);
    weft_group_close(group);
    EXPECT(weft_volume_close(volume), 0);
    close(fd);
    close(other);
    puts(failed ? "failed" : "all as expected");
    return failed;
}
