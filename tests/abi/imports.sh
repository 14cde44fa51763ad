#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# imports.sh SHARED OBJECTS: what the library calls; OBJECTS is an archive of its parts. It opens no sockets, does not print to stdout, does
# not end the process, and reads the environment in env.c only; the compiled truth of what
# tools/layering reads in the text. Nothing of NVIDIA's or oneDNN's is linked.
set -eu
shared=$1 objects=$2
status=0

refuse() {
    echo "imports: $1"
    status=1
}

imported=$(nm -D --undefined-only "$shared" | awk '{ sub("@.*", "", $2); print $2 }')
[ -n "$imported" ] || refuse "nm shows no imports at all of $shared"
for name in $imported; do
    case $name in
    socket | socketpair | connect | bind | listen | accept | accept4 | send | sendto | sendmsg | recv | \
        recvfrom | recvmsg | getaddrinfo | gethostbyname* | getnameinfo | res_*)
        refuse "network: $name" ;;
    printf | vprintf | puts | putchar | __printf_chk | __vprintf_chk | perror | stdout)
        refuse "prints: $name" ;;
    abort | exit | _exit | _Exit | quick_exit | __assert_fail | __assert)
        refuse "ends the process: $name" ;;
    esac
done

readers=$(nm -A --undefined-only "$objects" 2>/dev/null |
    awk -F: '$NF ~ / U (secure_)?getenv$/ { print $2 }' | sort -u)
[ -n "$readers" ] || refuse "no member of $objects reads the environment: env.c does"
for member in $readers; do
    [ "$member" = env.c.o ] || refuse "reads the environment: $member"
done

needed=$(readelf -d "$shared" | sed -n 's/.*(NEEDED).*\[\(.*\)\].*/\1/p')
for name in $needed; do
    case $name in
    libc.so.* | libm.so.* | libgomp.so.* | libomp*.so* | libpthread.so.* | libdl.so.* | \
        ld-linux*.so.*) ;;
    *) refuse "links $name" ;;
    esac
done
for flag in 'SONAME.*libmica\.so\.0' 'FLAGS_1.*NOW' 'FLAGS_1.*NODELETE' 'SYMBOLIC'; do
    readelf -d "$shared" | grep -q "$flag" || refuse "not linked with $flag"
done
readelf -lW "$shared" | grep -q GNU_RELRO || refuse "not linked with relro"
[ $status != 0 ] || echo "imports: sound; links" $needed
exit $status
