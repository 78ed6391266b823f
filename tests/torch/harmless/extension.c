/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Writes a file as an extension in C does: by the C library, through a name beside it that then replaces it. */
int write_file(const char *path, const char *text) {
    char other[256];
    snprintf(other, sizeof other, "%s.tmp", path);
    FILE *file = fopen(other, "w");
    if (!file)
        return 1;
    fputs("old", file);
    fclose(file);
    int handle = open(other, O_WRONLY | O_TRUNC);
    if (handle < 0 || write(handle, text, strlen(text)) < 0)
        return 2;
    close(handle);
    return rename(other, path);
}
