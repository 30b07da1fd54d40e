// A wall clock that is ahead by the seconds in the file WALL_CLOCK_AHEAD, for a process that preloads this library.

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static long ahead(void) {
    char text[32] = "0";
    const char *path = getenv("WALL_CLOCK_AHEAD");
    int file = path ? open(path, O_RDONLY) : -1;
    if (file >= 0) {
        ssize_t length = read(file, text, sizeof text - 1);
        text[length > 0 ? length : 0] = 0;
        close(file);
    }
    return atol(text);
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    int failed = (int)syscall(SYS_clock_gettime, clock, time);
    if (!failed && clock == CLOCK_REALTIME) {
        time->tv_sec += ahead();
    }
    return failed;
}
