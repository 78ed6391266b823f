// SPDX-License-Identifier: MIT OR Apache-2.0
// One of each function of C that takes a path, in an order in which each sees the changes of others.
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <glob.h>
#include <limits.h>
#include <pthread.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>
#include <utime.h>

static void say(const char *what, long result) {
    printf("%s %ld %s\n", what, result, result < 0 ? strerrorname_np(errno) : "");
}
#define DO(call) (errno = 0, say(#call, (long)(call)))

static void put(int fd, const char *text) {
    if (fd < 0) printf("no descriptor: %s\n", strerrorname_np(errno));
    else { DO(write(fd, text, strlen(text))); close(fd); }
}
static void get(const char *path) {
    char text[100] = {0};
    int fd = open(path, O_RDONLY);
    if (fd < 0) { printf("%s: %s\n", path, strerrorname_np(errno)); return; }
    ssize_t length = read(fd, text, 60);
    struct stat about;
    fstat(fd, &about);
    printf("%s: %zd of %ld, %o: %.60s\n", path, length, (long)about.st_size, about.st_mode, text);
    close(fd);
}
static void file(FILE *stream, const char *text) {
    if (!stream) { printf("no stream: %s\n", strerrorname_np(errno)); return; }
    if (text) fputs(text, stream);
    else { char line[80] = ""; printf("got %s", fgets(line, 80, stream) ? line : "nothing\n"); }
    fclose(stream);
}
static int compare(const void *a, const void *b) { return strcmp(*(char **)a, *(char **)b); }
static void list(const char *path) {
    DIR *folder = opendir(path);
    if (!folder) { printf("%s: %s\n", path, strerrorname_np(errno)); return; }
    char *names[200]; int count = 0, again = 0; long middle = -1; struct dirent *entry;
    while ((entry = readdir(folder)) && count < 200) {
        names[count++] = strdup(entry->d_name);
        if (count == 2) middle = telldir(folder);
    }
    if (middle >= 0) { seekdir(folder, middle); for (again = 2; readdir(folder); again++); }
    rewinddir(folder);
    int third = 0; while (readdir64(folder)) third++;
    struct stat by_path, by_fd;
    stat(path, &by_path); fstat(dirfd(folder), &by_fd);
    qsort(names, count, sizeof *names, compare);
    printf("%s: %d %d %d same %d:", path, count, count < 2 ? count : again, third,
           by_path.st_ino == by_fd.st_ino && by_path.st_dev == by_fd.st_dev);
    for (int i = 0; i < count; i++) printf(" %s", names[i]);
    printf("\n");
    closedir(folder);
}
static int seen;
static int visit(const char *path, const struct stat *about, int flag, struct FTW *where) {
    (void)path; (void)about; (void)where; seen += flag == FTW_F || flag == FTW_D || flag == FTW_DP ? 1 : 100; return 0;
}
static int remove_one(const char *path, const struct stat *about, int flag, struct FTW *where) {
    (void)about; (void)flag; (void)where; return remove(path);
}
static void *work(void *number) {
    char name[40], line[60];
    for (int i = 0; i < 50; i++) {
        snprintf(name, 40, "threads/%ld-%d", (long)number, i);
        FILE *out = fopen(name, "w"); fprintf(out, "%d\n", i); fclose(out);
        out = fopen("threads/all", "a"); fprintf(out, "%ld %d\n", (long)number, i); fclose(out);
        if (i % 2) { snprintf(line, 60, "%s.moved", name); rename(name, line); }
        else unlink(name);
    }
    return NULL;
}
static void run(char *const *line, char *const *environment) {
    fflush(stdout);
    pid_t child = fork();
    if (!child) { execvpe(line[0], line, environment); printf("exec %s\n", strerrorname_np(errno)); fflush(stdout); _exit(9); }
    int status; waitpid(child, &status, 0); printf("ended %d\n", WEXITSTATUS(status));
}

int main(int count, char **arguments) {
    (void)count;
    char buffer[PATH_MAX], *text; struct stat about; struct statx more; int fd;
    umask(022);
    setvbuf(stdout, NULL, _IONBF, 0);
    // Opening.
    put(open("best.pt", O_WRONLY | O_TRUNC), "new best"); get("best.pt");
    put(open64("log.txt", O_WRONLY | O_APPEND), "line 3\n"); get("log.txt");
    put(openat(AT_FDCWD, "new", O_CREAT | O_EXCL | O_RDWR, 0604), "new"); get("new");
    put(open("new", O_CREAT | O_EXCL | O_RDWR, 0604), "again");
    put(creat("checkpoints/created", 0640), "created"); get("checkpoints/created"); get("folder/created");
    put(open("latest", O_RDWR), "LATEST"); get("checkpoints/step-2.pt");
    put(open("dangling", O_RDWR | O_CREAT, 0600), "x"); put(open("loop", O_RDWR), "x");
    put(open("latest", O_RDWR | O_NOFOLLOW), "x"); put(open("data", O_RDWR), "x");
    put(open("missing/x", O_RDWR | O_CREAT, 0600), "x"); put(open("log.txt/x", O_RDWR | O_CREAT, 0600), "x");
    put(open("slash/", O_RDWR | O_CREAT, 0600), "x"); put(open("", O_RDWR | O_CREAT, 0600), "x");
    fd = open("sparse", O_RDWR); DO(pwrite(fd, "end", 3, 2 << 20)); fstat(fd, &about); printf("blocks %d\n", about.st_blocks < 100); close(fd);
    fd = open("data", O_TMPFILE | O_RDWR, 0600);
    if (fd >= 0) { put(dup(fd), "temporary"); sprintf(buffer, "/proc/self/fd/%d", fd); DO(linkat(AT_FDCWD, buffer, AT_FDCWD, "data/linked", AT_SYMLINK_FOLLOW)); close(fd); get("data/linked"); }
    fd = open("data/b.csv", O_RDWR);
    text = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0); close(fd); memcpy(text, "mapped", 6); munmap(text, 4096); get("data/b.csv");
    fd = open("data/b.csv", O_PATH); sprintf(buffer, "/proc/self/fd/%d", fd); put(open(buffer, O_WRONLY), "PROC"); DO(chmod(buffer, 0611)); get("data/b.csv"); close(fd);
    // Streams.
    file(fopen("stream", "w"), "one\n"); file(fopen64("stream", "a"), "two\n"); file(fopen("stream", "r+"), "ONE"); file(fopen("stream", "r"), NULL);
    file(fopen("stream", "wx"), "x"); file(fopen("missing/y", "w"), "x"); file(fopen("log.txt", "r+e"), "LINE"); file(fopen("log.txt", "r"), NULL);
    file(freopen("stream2", "w+", fopen("/dev/null", "r")), "reopened\n"); get("stream2"); file(fopen("data", "w"), "x");
    // Names of temporary files.
    strcpy(buffer, "data/tmp-XXXXXX"); fd = mkstemp(buffer); fstat(fd, &about); printf("%o\n", about.st_mode); put(fd, "t"); DO(unlink(buffer));
    strcpy(buffer, "data/tmp-XXXXXX.x"); fd = mkostemps(buffer, 2, O_CLOEXEC); put(fd, "t"); DO(unlink(buffer));
    strcpy(buffer, "data/dir-XXXXXX"); DO(mkdtemp(buffer) == buffer); stat(buffer, &about); printf("%o\n", about.st_mode); DO(rmdir(buffer));
    strcpy(buffer, "nowhere/dir-XXXXXX"); DO(mkdtemp(buffer) ? 0 : -1); strcpy(buffer, "short"); DO(mkstemp(buffer));
    // Names.
    DO(rename("new", "best.pt")); get("best.pt"); get("new");
    DO(rename("checkpoints", "moved")); list("moved"); list("moved/old"); list("folder"); get("moved/old/step-0.pt"); get("latest");
    DO(mkdir("checkpoints", 0700)); list("checkpoints"); DO(rename("moved", "checkpoints")); list("."); list("checkpoints"); get("latest");
    DO(rename("checkpoints", "checkpoints/old/x")); DO(rename("checkpoints", "data")); DO(rename("log.txt", "data")); DO(rename("data", "log.txt")); DO(rename("nothing", "x"));
    DO(renameat2(AT_FDCWD, "log.txt", AT_FDCWD, "stream", RENAME_NOREPLACE)); DO(renameat2(AT_FDCWD, "log.txt", AT_FDCWD, "stream", RENAME_EXCHANGE)); get("log.txt"); get("stream");
    DO(renameat2(AT_FDCWD, "deep", AT_FDCWD, "empty", RENAME_EXCHANGE)); list("deep"); list("empty/er/still");
    fd = open("data", O_RDONLY | O_DIRECTORY); DO(renameat(fd, "a.csv", AT_FDCWD, "a.csv")); DO(faccessat(fd, "a.csv", F_OK, 0)); get("data/same.csv"); put(openat(fd, "at", O_CREAT | O_WRONLY, 0600), "at"); DO(unlinkat(fd, "at", 0));
    DO(mkdirat(fd, "made", 0700)); DO(symlinkat("../log.txt", fd, "sym")); DO(readlinkat(fd, "sym", buffer, 100)); get("data/sym"); DO(fstatat(fd, "made", &about, 0)); DO(unlinkat(fd, "made", AT_REMOVEDIR)); DO(fchmodat(fd, "b.csv", 0600, 0)); close(fd);
    DO(link("best.pt", "hard")); put(open("hard", O_WRONLY | O_APPEND), "+hard"); get("best.pt"); stat("hard", &about); printf("links %ld\n", (long)about.st_nlink);
    DO(link("secret", "secret2")); put(open("secret", O_WRONLY), "SECRET"); get("secret2"); DO(linkat(AT_FDCWD, "latest", AT_FDCWD, "latest2", 0)); DO(readlink("latest2", buffer, 100));
    put(open("a.csv", O_WRONLY), "first"); get("data/same.csv");
    DO(symlink("best.pt", "sym")); get("sym"); DO(symlink("x", "sym")); DO(lstat("sym", &about)); printf("%o\n", about.st_mode);
    DO(unlink("data")); DO(unlink("nothing")); DO(rmdir("data")); DO(rmdir("log.txt")); DO(remove("deep")); DO(mkdir("deep", 0755)); list("deep"); DO(remove("sym")); get("sym"); DO(unlink("best.pt")); get("best.pt"); get("hard");
    DO(mkdir("data", 0700)); DO(mkdir("a/b", 0700)); DO(mkdir("trailing/", 0711)); DO(rmdir("trailing/")); DO(rmdir("deep/.")); DO(rmdir("deep/..")); DO(mkfifo("fifo", 0600)); DO(lstat("fifo", &about)); printf("%o\n", about.st_mode); DO(mknod("node", S_IFREG | 0640, 0)); get("node");
    // Attributes.
    DO(truncate("log.txt", 4)); get("log.txt"); DO(truncate64("data/b.csv", 10)); get("data/b.csv"); DO(truncate("data", 1)); DO(truncate("nothing", 1));
    DO(chmod("run.sh", 0700)); stat("run.sh", &about); printf("%o\n", about.st_mode); DO(chmod("empty", 0711)); stat("empty", &about); printf("%o\n", about.st_mode); DO(chmod("nothing", 0)); DO(chown("run.sh", -1, -1)); DO(lchown("latest", -1, -1));
    struct utimbuf old = {1, 2}; struct timeval times[2] = {{3, 4}, {5, 6}}; struct timespec exact[2] = {{7, 8}, {9, 10}};
    DO(utime("data/same.csv", &old)); stat("data/same.csv", &about); printf("%ld\n", about.st_mtim.tv_sec); DO(utimes("data/same.csv", times)); DO(lutimes("absolute", times)); lstat("absolute", &about); printf("%ld %ld\n", about.st_mtim.tv_sec, about.st_mtim.tv_nsec); lstat("data", &about); printf("%d\n", about.st_mtim.tv_sec == 5);
    DO(utimensat(AT_FDCWD, "secret2", exact, 0)); stat("secret", &about); printf("%ld %ld\n", about.st_mtim.tv_sec, about.st_mtim.tv_nsec);
    fd = open("empty/er/still/note", O_RDONLY); DO(fchmod(fd, 0604)); DO(futimens(fd, exact)); DO(fchown(fd, -1, -1)); DO(fstat(fd, &about)); printf("%o %ld\n", about.st_mode, about.st_mtim.tv_nsec); close(fd); stat("empty/er/still/note", &about); printf("%o %ld\n", about.st_mode, about.st_mtim.tv_sec);
    fd = open("absolute", O_RDONLY); DO(fchmod(fd, 0705)); DO(fstat(fd, &about)); printf("%o\n", about.st_mode); close(fd); stat("data", &about); printf("%o\n", about.st_mode);
    fd = open("run.sh", O_RDONLY); DO(ftruncate(fd, 0)); close(fd); get("run.sh");
    if (!setxattr("run.sh", "user.test", "v", 1, 0)) { char value[4] = ""; DO(getxattr("run.sh", "user.test", value, 4)); DO(listxattr("run.sh", buffer, 100)); DO(removexattr("run.sh", "user.test")); DO(getxattr("run.sh", "user.test", value, 4)); fd = open("data/same.csv", O_RDONLY); DO(fsetxattr(fd, "user.f", "v", 1, 0)); close(fd); DO(lgetxattr("data/same.csv", "user.f", value, 4)); }
    // Questions.
    DO(statx(AT_FDCWD, "run.sh", 0, STATX_ALL, &more)); printf("%o %ld\n", more.stx_mode, (long)more.stx_size); DO(access("best.pt", F_OK)); DO(access("run.sh", X_OK)); DO(euidaccess("hard", W_OK)); DO(eaccess("nothing", W_OK)); DO(faccessat(AT_FDCWD, "dangling", F_OK, AT_SYMLINK_NOFOLLOW)); DO(faccessat(AT_FDCWD, "dangling", F_OK, 0));
    int (*old_stat)(int, const char *, struct stat *) = (int (*)(int, const char *, struct stat *))dlsym(RTLD_DEFAULT, "__xstat"); if (old_stat) { DO(old_stat(1, "hard", &about)); printf("%ld\n", (long)about.st_size); }
    text = realpath("latest", NULL); printf("%s\n", text); text = realpath("dangling", buffer); printf("%s %s\n", text ? text : "none", strerrorname_np(errno)); text = canonicalize_file_name("folder/../absolute/./b.csv"); printf("%s\n", text); text = realpath("hard/..", NULL); printf("%s %s\n", text ? text : "none", strerrorname_np(errno));
    DO(readlink("absolute", buffer, sizeof buffer) > 0); DO(readlink("run.sh", buffer, 10)); DO(readlink("latest", buffer, 3)); struct statfs volume; DO(statfs("hard", &volume)); struct statvfs v; DO(statvfs("nothing", &v)); DO(pathconf("hard", _PC_NAME_MAX));
    fd = open("hard", O_RDONLY); sprintf(buffer, "/proc/self/fd/%d", fd); char target[PATH_MAX] = ""; DO(readlink(buffer, target, PATH_MAX) > 0); printf("%s\n", target); close(fd);
    // Directories.
    DO(mkdir("work", 0755)); DO(chdir("work")); printf("%s\n", getcwd(buffer, PATH_MAX)); put(open("here", O_CREAT | O_WRONLY, 0600), "here"); get("../work/here"); get("../log.txt"); list("."); list(".."); text = get_current_dir_name(); printf("%s\n", text); DO(getcwd(buffer, 3) ? 0 : -1); memset(target, 0, PATH_MAX); DO(readlink("/proc/self/cwd", target, PATH_MAX) > 0); printf("%s\n", target);
    fd = open("../data", O_RDONLY); DO(fchdir(fd)); close(fd); text = getcwd(NULL, 0); printf("%s\n", text); list("."); DO(chdir("nothing")); DO(chdir("b.csv")); DO(chdir("../absolute/..")); printf("%s\n", getcwd(buffer, PATH_MAX));
    struct dirent **entries; int found = scandir(".", &entries, NULL, alphasort); for (int i = 0; i < found; i++) printf("%s ", entries[i]->d_name); printf("%d\n", found);
    glob_t matches; DO(glob("*/*.csv", 0, NULL, &matches)); for (size_t i = 0; i < matches.gl_pathc; i++) printf("%s ", matches.gl_pathv[i]); printf("\n"); globfree(&matches);
    seen = 0; DO(nftw(".", visit, 10, FTW_PHYS)); printf("visited %d\n", seen); fd = open("checkpoints", O_RDONLY); DIR *folder = fdopendir(fd); found = 0; while (readdir(folder)) found++; printf("%d\n", found); closedir(folder);
    DO(nftw("checkpoints", remove_one, 10, FTW_PHYS | FTW_DEPTH)); list("."); list("folder"); get("latest");
    // Processes.
    char *nothing[] = {"ONLY=this", NULL};
    file(fopen("script", "w"), "#!/bin/sh -e\necho script $1 $0 >>said; cat said\n"); DO(chmod("script", 0755)); run((char *[]){"./script", "one", NULL}, environ); run((char *[]){"./script", "two", NULL}, nothing); run((char *[]){"./run.sh", "x", NULL}, environ);
    run((char *[]){"sh", "-c", "echo shell > hard; rm log.txt; echo x > run.sh; cat hard", NULL}, nothing); get("hard"); get("log.txt"); run((char *[]){"./hard", NULL}, environ); run((char *[]){"./not there", NULL}, environ);
    pid_t child; int status; posix_spawn_file_actions_t actions; posix_spawn_file_actions_init(&actions); posix_spawn_file_actions_addopen(&actions, 1, "data/b.csv", O_WRONLY | O_TRUNC, 0); fflush(stdout);
    int spawned = (posix_spawnp(&child, "sh", &actions, NULL, (char *[]){"sh", "-c", "echo spawned; rm -f empty/er/still/note", NULL}, nothing)); waitpid(child, &status, 0); DO(spawned); get("data/b.csv"); get("empty/er/still/note"); spawned = posix_spawn(&child, "./script", NULL, NULL, (char *[]){"./script", "three", NULL}, environ); waitpid(child, &status, 0); DO(spawned);
    DO(system("echo system > systems; mv systems systems2; cat systems2")); FILE *pipe = popen("cat systems2", "r"); char line[20]; printf("%s", fgets(line, 20, pipe)); DO(pclose(pipe)); DO(execl("./nothing", "x", NULL));
    struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = "socket"}; int one = socket(AF_UNIX, SOCK_STREAM, 0), two = socket(AF_UNIX, SOCK_STREAM, 0); DO(bind(one, (void *)&address, sizeof address)); DO(listen(one, 1)); DO(connect(two, (void *)&address, sizeof address)); DO(lstat("socket", &about)); printf("%o\n", about.st_mode); close(one); close(two); DO(unlink("socket"));
    pthread_t threads[4]; DO(mkdir("threads", 0755)); for (long i = 0; i < 4; i++) pthread_create(&threads[i], NULL, work, (void *)i); for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL); list("threads"); stat("threads/all", &about); printf("%ld\n", (long)about.st_size); DO(unlink("threads/all"));
    if (!fork()) { put(open("forked", O_CREAT | O_WRONLY, 0600), "forked"); rename("data", "data2"); _exit(0); } wait(NULL); get("forked"); list("data2"); list("data");
    printf("%s\n", arguments[1] ? arguments[1] : "");
    return 0;
}
