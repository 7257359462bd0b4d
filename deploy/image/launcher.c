/* bin/stallscope: starts the tree's own Python, whatever image the tree was copied into.
 *
 * Static, so it needs no loader and no shell.  The variables of the dynamic loader are meant for the app: a library that LD_PRELOAD
 * names may be made for another C library (musl's on Alpine), and then this Python, which starts the app under `stallscope exec`, could
 * not start at all.  So LD_... becomes LD-..., which no loader reads, and `exec` gives the app its names back.  -I keeps the app's
 * PYTHONPATH and PYTHONHOME out in the same way.
 *
 * PYTHON and PROGRAM are given by tree.py.
 */
#include <errno.h>
#include <string.h>
#include <unistd.h>

extern char **environ;

int main(int count, char **words)
{
    char *started[count + 5];
    int last = 0;
    started[last++] = PYTHON;
    started[last++] = "-I";
    started[last++] = "-B"; /* all is compiled already, and the file system may be read-only */
    started[last++] = "-u"; /* a finding is on standard output when it happens */
    started[last++] = PROGRAM;
    for (int each = 1; each < count; each++)
        started[last++] = words[each];
    started[last] = NULL;
    for (char **each = environ; *each; each++)
        if (!strncmp(*each, "LD_", 3))
            (*each)[2] = '-';
    execv(PYTHON, started);
    const char *why = strerror(errno);
    (void)!write(2, "stallscope: " PYTHON ": ", sizeof "stallscope: " PYTHON ": " - 1);
    (void)!write(2, why, strlen(why));
    (void)!write(2, "\n", 1);
    return 127;
}
