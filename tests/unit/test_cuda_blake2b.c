/* SPDX-License-Identifier: Apache-2.0
 * BLAKE2b against the RFC's example and digests made by Python's hashlib. */
#include "base/blake2b.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

static void hex_digest(const void *data, size_t bytes, size_t digest_bytes, size_t piece, char *hex)
{
    unsigned char digest[64];
    mica_blake2b b;
    mica_blake2b_start(&b, digest_bytes);
    for (size_t at = 0; at < bytes; at += piece) {
        size_t length = bytes - at < piece ? bytes - at : piece;
        mica_blake2b_add(&b, (const char *)data + at, length);
    }
    mica_blake2b_end(&b, digest);
    for (size_t i = 0; i < digest_bytes; i++) snprintf(hex + 2 * i, 3, "%02x", (unsigned)digest[i]);
}

static void matches_the_example_of_the_rfc(void **state)
{
    (void)state;
    char hex[129];
    hex_digest("abc", 3, 64, 3, hex);
    assert_string_equal(hex, "ba80a53f981c4d0d6a2797b69f12f6e94c212f14685ac4b74b12bb6fdbffa2d1"
                             "7d87c5392aab792dc252d5de4533cc9518d38aa8dbf1925ab92386edd4009923");
}

static void matches_hashlib_whatever_the_pieces(void **state)
{
    (void)state;
    static const struct {
        size_t bytes;
        const char *hex;
    } vectors[] = {
        {0, "0e5751c026e543b2e8ab2eb06099daa1d1e5df47778f7787faab45cdf12fe3a8"},
        {1, "03170a2e7597b7b7e3d84c05391d139a62b157e78786d8c082f29dcf4c111314"},
        {127, "f2fe67ff342e21b8f45e8f2e0bcd1d9243245d50ee6c78042e9c491388791c72"},
        {128, "c3582f71ebb2be66fa5dd750f80baae97554f3b015663c8be377cfcb2488c1d1"},
        {129, "f7f3c46ba2564ff4c4c162da1f5b605f9f1c4aa6a20652a9f9a337c1a2f5b9c9"},
        {255, "d9ef0fc521b4266d16df662bec231bc2ec3989e7adeaf63169c295dc239dbbea"},
        {256, "582f782226018ec33076bd8d1c42413530ac7e1126260ffc0f306ba3befc3f24"},
        {257, "227e15ed64ee8e93eb7bc53828f76eed974f2c4ab1408c3d08f212b7f8d69904"},
        {1000, "b372d0608f720c8c3dd41e9c8eecb10143b41abe520b616607e754bf79c08331"},
    };
    static const size_t pieces[] = {1, 7, 128, 129, 1000};
    unsigned char data[1000];
    char hex[65];
    for (size_t i = 0; i < sizeof data; i++) data[i] = (unsigned char)(i % 251);
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++)
        for (size_t p = 0; p < sizeof pieces / sizeof *pieces; p++) {
            hex_digest(data, vectors[i].bytes, 32, pieces[p], hex);
            assert_string_equal(hex, vectors[i].hex);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matches_the_example_of_the_rfc),
        cmocka_unit_test(matches_hashlib_whatever_the_pieces),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
