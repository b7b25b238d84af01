// Runs a program and kills it at one of its changes of the world, as if it had lost its power there.
//
//   tracer NTH|TEXT REPORT PROGRAM ARGUMENT..
//
// Counts, over all threads, the system calls that change files or processes: before each, and after a fork, a rename and
// a signal too. SIGUSR1 begins the count, SIGUSR2 ends it. At the NTH, or the first that has TEXT in its description, the
// program is killed. REPORT then holds the call, or "passed" if the count was ended before. Children are not followed. System calls and not functions of libc, as not
// all of them go through it.
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define CALL_MAX 512
#define THREADS_MAX 1024

static int counting;
static pid_t program;
static long nth, count;
static const char *wanted, *report;
static struct {
    pid_t tid;
    char call[CALL_MAX];
} threads[THREADS_MAX];

static void fail(const char *what) {
    perror(what);
    exit(99);
}

// Appears whole.
static void tell(const char *text) {
    char beside[4096];
    snprintf(beside, sizeof beside, "%s.new", report);
    FILE *file = fopen(beside, "w");
    if (!file || fputs(text, file) < 0 || fclose(file) || rename(beside, report)) fail("report");
}

static void read_text(pid_t tid, unsigned long long at, char *text, size_t size) {
    struct iovec here = {text, size - 1}, there = {(void *)at, size - 1};
    ssize_t read = process_vm_readv(tid, &here, 1, &there, 1, 0);
    // At the end of a mapping: less, but whole.
    for (size_t less = size / 2; read < 0 && less > 8; less /= 2) {
        here.iov_len = there.iov_len = less;
        read = process_vm_readv(tid, &here, 1, &there, 1, 0);
    }
    text[read < 0 ? 0 : read] = 0;
}

// What a call that counts is and is about; empty for others.
static void describe(pid_t tid, const struct __ptrace_syscall_info *info, char *call) {
    const __uint64_t *args = info->entry.args;
    const char *name = NULL;
    int path = -1, fd = -1;
    switch (info->entry.nr) {
#ifdef __NR_open
    case __NR_open: if (args[1] & O_CREAT) name = "open", path = 0; break;
    case __NR_mkdir: name = "mkdir", path = 0; break;
    case __NR_rename: name = "rename", path = 0; break;
    case __NR_unlink: name = "unlink", path = 0; break;
    case __NR_rmdir: name = "rmdir", path = 0; break;
    case __NR_chown: name = "chown", path = 0; break;
    case __NR_fork: name = "fork"; break;
    case __NR_vfork: name = "fork"; break;
#endif
    case __NR_openat: if (args[2] & O_CREAT) name = "open", path = 1; break;
    case __NR_mkdirat: name = "mkdir", path = 1; break;
    case __NR_renameat2: name = "rename", path = 1; break;
    case __NR_unlinkat: name = args[2] ? "rmdir" : "unlink", path = 1; break;
    case __NR_fchownat: name = "chown", path = 1; break;
    case __NR_fchown: name = "chown", fd = 0; break;
    case __NR_ftruncate: name = "truncate", fd = 0; break;
    case __NR_fsync: name = "sync", fd = 0; break;
    case __NR_fdatasync: name = "sync", fd = 0; break;
    case __NR_clone: if (!(args[0] & CLONE_THREAD)) name = "fork"; break;
    case __NR_clone3: {
        unsigned long flags = ptrace(PTRACE_PEEKDATA, tid, args[0], 0);
        if (!(flags & CLONE_THREAD)) name = "fork";
        break;
    }
    case __NR_kill: name = "signal"; break;
    case __NR_pidfd_send_signal: name = "signal"; break;
    }
    call[0] = 0;
    if (!name) return;
    char about[CALL_MAX - 32] = "", link[64];
    if (path >= 0) read_text(tid, args[path], about, sizeof about);
    if (fd >= 0) {
        snprintf(link, sizeof link, "/proc/%d/fd/%d", tid, (int)args[fd]);
        ssize_t read = readlink(link, about, sizeof about - 1);
        about[read < 0 ? 0 : read] = 0;
    }
    snprintf(call, CALL_MAX, "%s %s", name, about);
}

static void step(const char *moment, const char *call) {
    char told[CALL_MAX + 16];
    snprintf(told, sizeof told, "%s %s", moment, call);
    if (!counting || !(nth ? ++count == nth : strstr(told, wanted) != NULL)) return;
    kill(program, SIGKILL);
    while (waitpid(-1, NULL, __WALL) > 0 || errno == EINTR) {}
    tell(told);
    raise(SIGKILL);
}

static char *call_of(pid_t tid) {
    int i, free = -1;
    for (i = 0; i < THREADS_MAX && threads[i].tid != tid; i++)
        if (!threads[i].tid && free < 0) free = i;
    if (i < THREADS_MAX) return threads[i].call;
    if (free >= 0) {
        threads[free].tid = tid, threads[free].call[0] = 0;
        return threads[free].call;
    }
    fprintf(stderr, "too many threads\n");
    exit(99);
}

static void on_call(pid_t tid) {
    struct __ptrace_syscall_info info;
    if (ptrace(PTRACE_GET_SYSCALL_INFO, tid, sizeof info, &info) < 0) return;
    char *call = call_of(tid);
    if (info.op == PTRACE_SYSCALL_INFO_ENTRY) {
        describe(tid, &info, call);
        if (*call) step("before", call);
    } else if (info.op == PTRACE_SYSCALL_INFO_EXIT && *call) {
        if (!info.exit.is_error && strchr("fr", call[0]) && strncmp(call, "rmdir", 5)) step("after", call);
        if (!strncmp(call, "signal", 6)) step("after", call);
        *call = 0;
    }
}

static void on_end(pid_t tid, int status) {
    if (tid == program) {
        if (WIFEXITED(status)) exit(WEXITSTATUS(status));
        sigset_t own;
        sigemptyset(&own), sigaddset(&own, WTERMSIG(status));
        sigprocmask(SIG_UNBLOCK, &own, NULL);
        raise(WTERMSIG(status));
        exit(99);
    }
    for (int i = 0; i < THREADS_MAX; i++)
        if (threads[i].tid == tid) threads[i].tid = 0;
}

static void on_stop(pid_t tid, int status) {
    if (WIFEXITED(status) || WIFSIGNALED(status)) {
        on_end(tid, status);
        return;
    }
    int signal = WSTOPSIG(status), event = status >> 16;
    if (event == PTRACE_EVENT_STOP && signal != SIGTRAP) {
        ptrace(PTRACE_LISTEN, tid, 0, 0);
        return;
    }
    if (signal == (SIGTRAP | 0x80)) on_call(tid);
    if (signal == (SIGTRAP | 0x80) || event) signal = 0;
    // Nobody is slowed down while nothing is counted.
    ptrace(counting ? PTRACE_SYSCALL : PTRACE_CONT, tid, 0, signal);
}

// Each goes on from call to call then.
static void stop_all(void) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task", program);
    DIR *tasks = opendir(path);
    if (!tasks) return;
    for (struct dirent *task; (task = readdir(tasks));) ptrace(PTRACE_INTERRUPT, (pid_t)atol(task->d_name), 0, 0);
    closedir(tasks);
}

int main(int argc, char **argv) {
    if (argc < 4) return 99;
    wanted = argv[1];
    nth = atol(wanted);
    report = argv[2];
    int go[2];
    if (pipe2(go, O_CLOEXEC)) fail("pipe");
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGUSR1), sigaddset(&signals, SIGUSR2), sigaddset(&signals, SIGTERM), sigaddset(&signals, SIGCHLD);
    sigprocmask(SIG_BLOCK, &signals, NULL);
    program = fork();
    if (program < 0) fail("fork");
    if (!program) {
        char byte;
        sigprocmask(SIG_UNBLOCK, &signals, NULL);
        if (read(go[0], &byte, 1) == 1) execv(argv[3], argv + 3);
        _exit(99);
    }
    long options = PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE | PTRACE_O_TRACEEXEC | PTRACE_O_EXITKILL;
    if (ptrace(PTRACE_SEIZE, program, 0, options) || ptrace(PTRACE_INTERRUPT, program, 0, 0)) fail("ptrace");
    if (write(go[1], "g", 1) != 1) fail("go");
    for (;;) {
        int status;
        for (pid_t tid; (tid = waitpid(-1, &status, __WALL | WNOHANG)) > 0;) on_stop(tid, status);
        switch (sigwaitinfo(&signals, NULL)) {
        case SIGUSR1: counting = 1, stop_all(); break;
        case SIGUSR2: counting = 0, tell("passed"); break;
        case SIGTERM: kill(program, SIGTERM); break;
        }
    }
}
