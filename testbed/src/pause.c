/* Waits, and buries the processes that are left to it. The first process of a pod and of a node. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void leave(int signal) {
    (void)signal;
    _exit(0);
}

static void reap(int signal) {
    (void)signal;
    while (waitpid(-1, 0, WNOHANG) > 0)
        ;
}

int main(void) {
    struct sigaction action = {.sa_handler = leave};
    sigaction(SIGINT, &action, 0);
    sigaction(SIGTERM, &action, 0);
    action.sa_handler = reap;
    action.sa_flags = SA_NOCLDSTOP;
    sigaction(SIGCHLD, &action, 0);
    for (;;)
        pause();
}
