// SPDX-License-Identifier: MIT OR Apache-2.0
// Changes files by calls of the kernel, as Go's runtime does. Linked statically, no library can stand before it.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static void show(const char *call, long result) {
    printf("%s %s\n", call, result < 0 ? strerror(errno) : "done");
}

int main(int count, char **arguments) {
    const char *here = count > 1 ? arguments[1] : ".";
    if (chdir(here)) return 1;
    show("open", syscall(SYS_openat, AT_FDCWD, "best.pt", O_WRONLY));
    show("create", syscall(SYS_openat, AT_FDCWD, "created", O_WRONLY | O_CREAT, 0600));
    show("truncate", syscall(SYS_truncate, "log.txt", 1));
    show("rename", syscall(SYS_renameat2, AT_FDCWD, "secret", AT_FDCWD, "moved", 0));
    show("unlink", syscall(SYS_unlinkat, AT_FDCWD, "run.sh", 0));
    show("link", syscall(SYS_linkat, AT_FDCWD, "best.pt", AT_FDCWD, "linked", 0));
    show("mkdir", syscall(SYS_mkdirat, AT_FDCWD, "made", 0700));
    show("read", syscall(SYS_openat, AT_FDCWD, "best.pt", O_RDONLY));
    return 0;
}
